job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  placement {
    relocate_after = "never" # error: Wrong value for "relocate_after"
  }
}
