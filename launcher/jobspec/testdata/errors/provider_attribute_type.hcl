job "demo" {
  provider "local" {
    zones = "a" # error: Wrong type for "zones"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
