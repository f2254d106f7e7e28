job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  setpu = "true" # error: Unknown attribute "setpu"
}
