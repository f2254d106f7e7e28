job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "torchrun" {
    command = "torchrun --nnodes=2 --rdzv_endpoint h:1 --nproc-per-node 4 --max-restarts=3 train.py --nnodes 3" # error: torchrun's --nnodes is set by the launcher | error: torchrun's --rdzv-endpoint is set by the launcher | warning: torchrun's --nproc-per-node hides the world's size | warning: torchrun's --max-restarts hides failures
  }
}
