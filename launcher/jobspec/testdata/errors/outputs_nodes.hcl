job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  outputs {
    from  = "out"
    to    = "r"
    nodes = "each" # error: Wrong value for "nodes"
  }
}
