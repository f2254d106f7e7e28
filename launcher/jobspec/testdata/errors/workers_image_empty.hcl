job "demo" {
  provider "local" {}
  workers {
    count    = 2
    vm_image = "" # error: Wrong value for "vm_image"
  }
  run "ranks" {
    command = "python train.py"
  }
}
