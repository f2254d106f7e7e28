job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  max_duration = "2h" # error: Unknown attribute "max_duration"
}
