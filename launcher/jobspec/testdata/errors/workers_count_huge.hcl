job "demo" {
  provider "local" {}
  workers {
    count = 1e9 # error: Wrong value for "count"
  }
  run "ranks" {
    command = "python train.py"
  }
}
