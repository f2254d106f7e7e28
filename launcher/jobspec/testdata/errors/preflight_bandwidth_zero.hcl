job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  preflight {
    bandwidth = "0Gbit" # error: Wrong value for "bandwidth"
  }
}
