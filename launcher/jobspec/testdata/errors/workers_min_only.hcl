job "demo" {
  provider "local" {}
  workers {
    min = 2 # error: "min" without "max"
  }
  run "ranks" {
    command = "python train.py"
  }
}
