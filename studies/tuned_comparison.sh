#!/usr/bin/env bash
# Every algorithm with equal models on MNIST and CIFAR-10: tuned on development seeds, then compared on seeds 0 to 2.
#   studies/tuned_comparison.sh OUT [extra options such as --device cuda --workers 14]
# KFL_DATA_DIR must hold both datasets. The search is short (100 rounds, one seed); the comparison is the full 200.
set -euo pipefail
out=$1; shift
all=kfl,local,fedavg,fedrep,apfl,fedkd,fedproto,self-knowledge,fixed-knowledge
kfl=${KFL:-kfl}
for data in mnist:256 cifar10:128; do
  name=${data%%:*}; width=${data##*:}
  common=(--dataset "$name" --devices 100 --equal-models "$width" --radio none "$@")
  $kfl tune --algorithms $all --seeds 100 --rounds 100 --evaluate-every 50 --out "$out/tune-$name" "${common[@]}"
  $kfl compare --algorithms $all --seeds 0..2 --rounds 200 --evaluate-every 10 \
    --settings "$out/tune-$name/tuned.toml" --out "$out/tuned-$name" "${common[@]}"
done
