job "demo" {
  provider "local" {}
  workers {
    count = 0 # error: Wrong value for "count"
  }
  run "ranks" {
    command = "python train.py"
  }
}
