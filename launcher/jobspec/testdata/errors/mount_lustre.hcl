job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  mount "/data" {
    type   = "lustre"
    source = "/scratch" # error: Wrong value for "source"
  }
}
