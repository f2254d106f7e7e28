job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  outputs {
    from = "out"
    to   = "s4://bucket" # error: Wrong value for "to"
  }
}
