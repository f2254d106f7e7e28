job "demo" {
  provider "local" {}
  workers {
    count         = 2
    instance_type = ["a", "b"]
    memory_gib    = 8 # error: "memory_gib" and "instance_type" exclude each other
  }
  run "ranks" {
    command = "python train.py"
  }
}
