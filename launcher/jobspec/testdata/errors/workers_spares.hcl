job "demo" {
  provider "local" {}
  workers {
    count  = 2
    spares = -1 # error: Wrong value for "spares"
  }
  run "ranks" {
    command = "python train.py"
  }
}
