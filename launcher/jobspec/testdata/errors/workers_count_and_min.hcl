job "demo" {
  provider "local" {}
  workers {
    min   = 1
    count = 2 # error: "count" excludes "min" and "max"
  }
  run "ranks" {
    command = "python train.py"
  }
}
