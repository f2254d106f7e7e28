job "demo" {
  provider "local" {}
  workers {
    count = "four" # error: Wrong type for "count"
  }
  run "ranks" {
    command = "python train.py"
  }
}
