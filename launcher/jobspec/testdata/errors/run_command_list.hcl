job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = ["python", "train.py"] # error: Wrong type for "command"
  }
}
