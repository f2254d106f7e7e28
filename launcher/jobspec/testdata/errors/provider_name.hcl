job "demo" {
  provider "AWS" {} # error: Wrong name "AWS"
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
