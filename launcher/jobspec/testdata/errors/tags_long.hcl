job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  tags = {
    "" = "x" # error: Wrong tag ""
    a = join("", [for i in range(300) : "x"]) # error: Wrong tag "a"
  }
}
