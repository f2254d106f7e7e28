job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  mount "/data" {
    type   = "gs" # error: Wrong value for "type"
    source = "gs://bucket"
  }
}
