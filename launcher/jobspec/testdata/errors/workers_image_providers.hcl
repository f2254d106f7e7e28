job "demo" {
  provider "local" {}
  provider "aws" {}
  workers {
    count    = 2
    vm_image = "ami-1" # error: "vm_image" needs to know its provider
  }
  run "ranks" {
    command = "python train.py"
  }
}
