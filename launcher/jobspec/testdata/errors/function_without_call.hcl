job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  setup = file # error: Unknown name "file"
}
