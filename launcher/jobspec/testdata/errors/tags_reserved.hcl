job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  tags = {
    launcher-run = "x" # error: Reserved tag "launcher-run"
  }
}
