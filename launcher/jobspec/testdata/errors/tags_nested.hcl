job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  tags = {
    team = { a = 1 } # error: Wrong type for "tags"
  }
}
