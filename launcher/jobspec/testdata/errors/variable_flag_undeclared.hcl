# var: epcohs=2
variable "epochs" {
  default = 1
}
job "demo" { # error: Undeclared variable "epcohs"
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = { A = var.epochs }
}
