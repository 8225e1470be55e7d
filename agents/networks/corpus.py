"""The corpus: architectures whose workloads a cost model may learn from before anybody names a network.

All are built from their configurations with random weights by `transformers`, so nothing is downloaded. They
are small on purpose (images of 32 to 96 pixels, texts of 16 to 128 tokens, few equal layers): a program of
them takes some 0.01 to 10 ms, so that thousands can be measured in a night, and layers that repeat add no
workload. The shapes are those of the architectures at that size. Standard library only.

A change of this list is another corpus: a daemon that collects from it chooses its workloads anew.
"""

from __future__ import annotations

from typing import Final

#: What stands for all of them among the names of networks.
CORPUS_NAME: Final = "corpus"

_TINY: Final = "hidden_size=192,num_attention_heads=3,intermediate_size=768,num_hidden_layers=2"
_SMALL: Final = "hidden_size=256,num_attention_heads=4,intermediate_size=512,num_hidden_layers=2"
_TEXT: Final = "num_hidden_layers=2,vocab_size=8192"

#: Convolutional networks for images: plain, grouped and depthwise convolutions, pooling, group norms.
_CONVOLUTIONAL: Final = (
    "resnet,image_size=64",
    "regnet,image_size=64",
    "regnet,image_size=48,groups_width=32",
    "regnet,image_size=64,groups_width=16,batch=8",
    "bit,image_size=64",
    "bit,image_size=32,batch=8",
    "convnext,image_size=64",
    "convnextv2,image_size=48,batch=8",
    "poolformer,image_size=64",
    "poolformer,image_size=48,batch=8",
    "resnet,image_size=32,batch=8",
    "mobilenet_v1,image_size=96",
    "mobilenet_v1,image_size=64,batch=4",
    "mobilenet_v2,image_size=96",
    "mobilenet_v2,image_size=64,depth_multiplier=0.5",
    "efficientnet,image_size=96,width_coefficient=1.0,depth_coefficient=1.0,hidden_dim=1280",
    "hgnet_v2,image_size=64",
    "textnet,image_size=64",
    "pp_lcnet,image_size=64",
    "focalnet,image_size=64",
)
#: Networks for images with attention; `dpt` has transposed convolutions.
_ATTENTIVE: Final = (
    "mobilevit,image_size=96",
    "mobilevit,image_size=64,batch=2",
    "swiftformer,image_size=64",
    "cvt,image_size=64",
    "levit,image_size=64",
    "pvt,image_size=64",
    "pvt_v2,image_size=64,batch=8",
    "segformer,image_size=64",
    "swin,image_size=96,embed_dim=48,window_size=3",
    "glpn,image_size=64",
    "dpt,image_size=64,hidden_size=192,num_attention_heads=3,intermediate_size=768,fusion_hidden_size=64",
    "dpt,image_size=96,hidden_size=96,num_attention_heads=3,intermediate_size=384,fusion_hidden_size=32,batch=2",
    "dpt,image_size=48,hidden_size=64,num_attention_heads=2,intermediate_size=256,fusion_hidden_size=24",
    "dpt,image_size=32,hidden_size=96,num_attention_heads=3,intermediate_size=384,fusion_hidden_size=16",
    "deit,image_size=96,patch_size=8,hidden_size=64,num_attention_heads=4,intermediate_size=128,"
    "num_hidden_layers=2,batch=4",
    f"vit,image_size=64,{_TINY}",
    f"deit,image_size=96,{_TINY}",
    "deit,image_size=64,patch_size=4,hidden_size=96,num_attention_heads=3,intermediate_size=384,"
    "num_hidden_layers=2,batch=2",
    f"beit,image_size=64,{_TINY}",
    "dinov2,image_size=70,hidden_size=192,num_attention_heads=3,num_hidden_layers=2",
    "vitdet,image_size=64,hidden_size=192,num_attention_heads=3,num_hidden_layers=2",
    f"siglip_vision_model,image_size=64,{_TINY}",
    "clip_vision_model,image_size=64,patch_size=8,hidden_size=256,num_attention_heads=4,"
    "intermediate_size=768,num_hidden_layers=2",
)
#: Networks for videos: convolutions of three axes.
_VIDEO: Final = (
    f"videomae,image_size=32,num_frames=4,{_TINY}",
    "videomae,image_size=48,num_frames=4,hidden_size=128,num_attention_heads=4,intermediate_size=512,"
    "num_hidden_layers=2",
    f"vivit,image_size=32,num_frames=4,{_TINY}",
    "vivit,image_size=32,num_frames=8,hidden_size=128,num_attention_heads=4,intermediate_size=512,"
    "num_hidden_layers=2",
)
#: Networks for texts: matrix products, soft maxima, layer norms, look-ups.
_TEXTUAL: Final = (
    f"bert,hidden_size=128,num_attention_heads=2,intermediate_size=512,{_TEXT},tokens=64",
    f"bert,hidden_size=64,num_attention_heads=4,intermediate_size=256,{_TEXT},tokens=128,batch=2",
    f"albert,hidden_size=256,num_attention_heads=4,intermediate_size=1024,{_TEXT},tokens=48",
    "distilbert,dim=256,n_heads=4,hidden_dim=1024,n_layers=2,vocab_size=8192,tokens=32",
    f"electra,{_TEXT},tokens=64",
    f"mobilebert,{_TEXT},tokens=32",
    f"squeezebert,embedding_size=256,{_SMALL},vocab_size=8192,tokens=64",
    f"deberta-v2,{_SMALL},vocab_size=8192,tokens=32",
    "xlnet,d_model=256,n_head=4,d_inner=512,n_layer=2,vocab_size=8192,tokens=32",
    f"nystromformer,{_SMALL},vocab_size=8192,tokens=64",
    "bloom,hidden_size=256,n_head=4,n_layer=2,vocab_size=8192,tokens=32",
    f"bert,hidden_size=48,num_attention_heads=6,intermediate_size=192,{_TEXT},tokens=96,batch=4",
    "distilbert,dim=64,n_heads=8,hidden_dim=128,n_layers=2,vocab_size=8192,tokens=64,batch=8",
    "gpt2,n_embd=64,n_head=2,n_layer=2,vocab_size=8192,tokens=128,batch=4",
    f"roberta,{_TINY},vocab_size=8192,tokens=64",
    f"mpnet,{_TINY},vocab_size=8192,tokens=48",
    "gpt2,n_embd=192,n_head=3,n_layer=2,vocab_size=8192,tokens=48",
    f"gpt_neox,{_SMALL},vocab_size=8192,tokens=32",
    f"phi,hidden_size=256,num_attention_heads=4,intermediate_size=1024,{_TEXT},tokens=48",
    f"llama,hidden_size=256,num_attention_heads=4,num_key_value_heads=4,intermediate_size=688,{_TEXT},"
    "tokens=64",
    f"mistral,hidden_size=256,num_attention_heads=8,num_key_value_heads=2,head_dim=32,"
    f"intermediate_size=896,{_TEXT},tokens=32",
    f"qwen3,hidden_size=320,num_attention_heads=5,num_key_value_heads=1,head_dim=64,"
    f"intermediate_size=864,{_TEXT},tokens=32",
    f"gemma,hidden_size=256,num_attention_heads=4,num_key_value_heads=1,head_dim=64,"
    f"intermediate_size=1024,{_TEXT},tokens=32",
    "mamba,hidden_size=128,num_hidden_layers=1,state_size=8,vocab_size=8192,tokens=16",
)

#: All of them, as `agents.networks.network_name` reads them.
CORPUS: Final = tuple(
    f"transformers:{architecture}" for architecture in (*_CONVOLUTIONAL, *_ATTENTIVE, *_VIDEO, *_TEXTUAL)
)
