# What the other files leave: notify, required fabric and zone, a bare preflight test.
job "r" {
  provider "local" {}
  placement {
    same_zone      = "require"
    relocate_after = "1m"
  }
  network {
    egress = "none"
    fabric = "required"
  }
  workers {
    count         = 1
    instance_type = ["g5.xlarge", "g5.xlarge", "g5.2xlarge"]
    vm_image      = "img"
  }
  run "ranks" {
    command        = "./train"
    procs_per_node = "gpu"
  }
  elastic { on_change = "notify" }
  preflight { gpu = false }
}
