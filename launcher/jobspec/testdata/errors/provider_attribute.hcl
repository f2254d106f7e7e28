job "demo" {
  provider "local" {
    zone = ["a"] # error: Unknown attribute "zone"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
