job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  limits {
    max_duration  = "10m"
    start_timeout = "20m" # error: "start_timeout" is longer than "max_duration"
  }
}
