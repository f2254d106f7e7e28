job "demo" {
  provider "local" {}
  workers {
    count         = 2
    gpu           = "V100:4"
    instance_type = "p3.8xlarge" # error: "gpu" and "instance_type" exclude each other
  }
  run "ranks" {
    command = "python train.py"
  }
}
