# The whole example of the design: every block and attribute of the job file.
job "cifar" {
  tags = { cost-center = "vision" }

  provider "aws" {                     # several: candidates from all; one run lives inside one region of one provider
    regions      = ["us-east-1", "us-west-2"]
    price_factor = 0.9                 # credits or discounts, for ranking and budget                                    [1]
  }                                    # also subnet, usd_per_hour, self_delete_identity, mount; and head { instance_type, identity } and workers { instance_type, vm_image, identity } here win over the blocks below

  placement {
    prefer         = "cheapest"        # or "listed": exhaust the first provider and region first                        ["cheapest"]
    same_zone      = "prefer"          # first all in one zone; replacements there first, elsewhere after two failures or below min; "require"; "no"  ["prefer"]
    relocate_after = "10m"             # short of workers for so long and the region dry: move the whole world           [never]
  }

  network {
    egress   = "auto"                  # "nat", "public_ip" (nothing inbound), "none"; auto: NAT if the subnet has it, else public_ip   ["auto"]
    ssh_from = ["caller"]              # who may reach the head's port 22 (keys only, host key pinned); CIDRs too        ["caller"]
    fabric   = "best"                  # EFA / InfiniBand / GPUDirect: "required" fails if not really used; "none"       ["best"]
  }

  head {
    cpus       = 2                     # or instance_type                                                                [2]
    disk_gib   = 30                    #                                                                                 [30]
    supervisor = "head"                # or "client"                                                                     ["head"]
    identity   = "launcher-head"       # existing instance profile / service account / managed identity                  [none: needs supervisor = "client" on clouds]
  }

  workers {
    count    = 4                       # min = max = 4: a fixed world, held until replaced. Or min and max: elastic
    gpu      = ["V100:4", "A10G:4"]    # one string or a list: model:count per node, any of them, ranked by price; or instance_type likewise, or cpus and memory_gib
    market   = "spot"                  # "on_demand", "spot_or_on_demand"                                                ["spot"]
    disk_gib = 100                     #                                                                                 [100]
    vm_image = "…"                     # provider's own id                                                               [the provider's image fit for that GPU]
    identity = "ml-data-read"          # given by the user, for buckets and registries; never made or widened by us      [none]
    spares   = 0                       # after max: extra nodes booted and idle, first in line                           [0]
  }

  workdir {
    source  = "."                      # .gitignore and .launcherignore are honoured; $LAUNCHER_HOME, .git, sockets and devices never travel  [no workdir]
    exclude = ["*.ckpt"]
  }
  mount "/data" {
    type   = "nfs"                     # "nfs", "efs", "lustre", "s3", "gcs", "azblob"
    source = "10.0.0.4:/export/data"
  }
  setup   = file("setup.sh")           # bash -euo pipefail in the workdir on each worker (on the head too where the run type needs it); failure is final
                                       # after one try on another node; its last lines are shown
  env     = { EPOCHS = "3" }
  secrets = ["WANDB_API_KEY"]          # from the caller's environment; never in journal, argv, user data or logs

  run "torchrun" {                     # "ranks", "torchrun"; later "horovod", "ray", "mpi"
    command        = "torchrun train.py --epochs 3"
    procs_per_node = "gpu"             # or a number                                                                     ["gpu" where workers have GPUs, else 1]
    elasticity     = "launcher"        # torchrun only: "torchrun" hands min:max to TorchElastic                         ["launcher"]
    hang_timeout   = "30m"             # no output, progress, CPU or GPU use on any rank                                 [off]
  }

  elastic {
    start_wait   = "60s"               # first generation: all of max, or ≥ min and this long since min was reached      ["60s"]
    lost_after   = "10s"               # the member lease                                                                ["10s"]
    grow_every   = "10m"               # growth re-forms at most so often and waits for the next checkpoint (a file in `checkpoint` or a report)   ["10m"]
    below_min    = "30m"               # fewer than min for so long: give up                                             ["30m"]
    on_change    = "restart"           # processes restart from their checkpoint; "notify": they are told                ["restart"]
    max_restarts = 3                   # of the job's own failures; preemptions and lost nodes do not count              [3]
  }

  preemption {
    signal = "SIGUSR1"                 # to every rank process of the generation, never to torchrun itself               [none]
    grace  = "20s"                     #                                                                                 ["20s"]
  }

  checkpoint {
    path = "ckpt"                      # a file renamed into place here, or announced by POST /v1/progress, is a checkpoint: copied off the node, and on every node before a generation starts  [off]
    to   = "head"                      # or s3:// gs:// azblob://                                                        ["head"]
    keep = 2                           #                                                                                 [2]
  }

  preflight {                          # before the first generation; the node to blame is swapped                      [off]
    bandwidth = "5Gbit"
    latency   = "2ms"
    gpu       = true
  }

  container {                          # the ranks run in it: host network, GPUs, /dev/shm sized; the agent stays on the host   [off]
    image = "pytorch/pytorch:latest"
    login = "none"                     # "ecr", "gar", "acr"
  }

  outputs {
    from = "out"                       # of rank 0's node (nodes = "all": into folders by node), synced every minute, at a notice, at the end
    to   = "./results"                 # a folder of the caller, or a bucket
  }

  limits {
    budget_usd       = 40              #                                                                                 [none]
    max_usd_per_hour = 12              #                                                                                 [none]
    max_duration     = "24h"           #                                                                                 ["24h"]
    start_timeout    = "20m"           #                                                                                 ["20m"]
    node_lease       = "5m"            # a node nobody renews ends itself                                                ["5m"]
    hold_results     = "24h"           # how long the head waits for a caller to fetch                                   ["24h"]
    unbounded_leak   = false           # start although a provider cannot bound a leak                                   [false]
  }
}
