job "demo" {
  provider "local" {}
  workers {
    num_nodes = 4 # error: Unknown attribute "num_nodes"
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
