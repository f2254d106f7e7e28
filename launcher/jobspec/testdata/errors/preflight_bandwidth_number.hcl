job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  preflight {
    bandwidth = 5 # error: Wrong value for "bandwidth"
  }
}
