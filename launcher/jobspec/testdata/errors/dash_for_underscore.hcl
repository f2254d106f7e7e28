job "demo" {
  provider "local" {}
  workers {
    count = 2
    memory-gib = 4 # error: Unknown attribute "memory-gib"
  }
  run "ranks" {
    command = "python train.py"
  }
}
