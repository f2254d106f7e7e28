job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = { A = var["x"] } # error: Undeclared variable "x"
}
