job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = {
    WORLD_SIZE     = 4      # error: Reserved variable "WORLD_SIZE"
    LAUNCHER_API   = "x"    # error: Reserved variable "LAUNCHER_API"
    PET_NNODES     = "1:4"  # error: Reserved variable "PET_NNODES"
    EPOCHS         = 4
  }
}
