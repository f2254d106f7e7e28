job "demo" {
  provider "local" {}
  workers {
    count      = 2
    memory_gib = "64GB" # error: Wrong type for "memory_gib"
  }
  run "ranks" {
    command = "python train.py"
  }
}
