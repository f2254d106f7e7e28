job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  checkpoint { # error: Missing attribute "path"
    keep = 0 # error: Wrong value for "keep"
  }
}
