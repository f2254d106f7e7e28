job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  limits {
    max_duration = "off" # error: Wrong value for "max_duration"
  }
}
