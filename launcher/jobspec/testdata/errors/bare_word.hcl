job "demo" {
  provider "local" {}
  workers {
    count  = 2
    market = spot # error: Unknown name "spot"
  }
  run "ranks" {
    command = "python train.py"
  }
}
