job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  tags = ["a"] # error: Wrong type for "tags"
}
