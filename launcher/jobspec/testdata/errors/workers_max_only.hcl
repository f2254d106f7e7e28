job "demo" {
  provider "local" {}
  workers {
    max = 2 # error: "max" without "min"
  }
  run "ranks" {
    command = "python train.py"
  }
}
