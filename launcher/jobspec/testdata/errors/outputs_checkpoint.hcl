job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  checkpoint {
    path = "out"
  }
  outputs {
    from = "./out/" # warning: outputs and checkpoint are the same folder
    to   = "results"
  }
}
