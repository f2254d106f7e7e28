job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  placement {
    same_zone = "yes" # error: Wrong value for "same_zone"
  }
}
