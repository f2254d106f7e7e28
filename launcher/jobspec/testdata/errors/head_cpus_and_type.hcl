job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  head {
    instance_type = "t3.small"
    cpus          = 2 # error: "cpus" and "instance_type" exclude each other
  }
}
