nodes=8
gpus=8
runname="emo_1b14b_130b"
launch src/scripts/train/olmoe-1B-7B_fsl.py $runname \
    --trainer.max_duration='{value: 130_000_000_000, unit: tokens}' \
    --model.block.feed_forward_moe.num_experts=128 \
    --model-type="two-level_lb-batch_reduce-dp_sharedexp_randpool" \
    --num_shared_experts=1 \
    --model.block.name="moe" \
    --model.block.sequence_mixer.qk_norm=null
