job "demo" {
  provider "local" {}
  workers {
    min = 4 # error: "min" is more than "max"
    max = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
