job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  limits {
    max_duration = "99999999999h" # error: Wrong value for "max_duration"
  }
}
