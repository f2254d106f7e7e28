job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "torchrun" {
    command = "python -m torch.distributed.run -m pkg.train --nnodes 3"
    hang_timeout = "-1s" # error: Wrong value for "hang_timeout"
  }
}
