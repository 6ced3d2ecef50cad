custom_imports = dict(
    allow_failed_imports=False, imports=[
        's3zoo.transfer.mm',
    ])
default_scope = 'mmseg'
model = dict(
    backbone=dict(
        model='s3',
        model_args=dict(
            arch=dict(
                family='s3',
                schema_version=1,
                stages=[
                    dict(
                        blocks=[
                            dict(
                                head_dim=8,
                                mlp_ratio=1.0,
                                num_heads=1,
                                window_size=4),
                        ],
                        embed_dim=8),
                    dict(
                        blocks=[
                            dict(
                                head_dim=8,
                                mlp_ratio=1.0,
                                num_heads=1,
                                window_size=4),
                        ],
                        embed_dim=8),
                ])),
        pretrained=None,
        type='S3ZooBackbone'),
    data_preprocessor=dict(
        mean=[
            0.0,
            0.0,
            0.0,
        ],
        size=(
            32,
            32,
        ),
        std=[
            1.0,
            1.0,
            1.0,
        ],
        type='SegDataPreProcessor'),
    decode_head=dict(
        channels=4,
        in_channels=8,
        in_index=1,
        loss_decode=dict(loss_weight=1.0, type='CrossEntropyLoss'),
        norm_cfg=dict(type='BN'),
        num_classes=2,
        num_convs=1,
        type='FCNHead'),
    test_cfg=dict(mode='whole'),
    type='EncoderDecoder')
test_dataloader = dict(
    dataset=dict(
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation'),
        data_root='',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='PackSegInputs'),
        ],
        type='BaseSegDataset'),
    num_workers=0)
test_evaluator = dict(
    iou_metrics=[
        'mIoU',
    ], type='IoUMetric')
visualizer = dict(
    name='visualizer',
    type='SegLocalVisualizer',
    vis_backends=[
        dict(type='LocalVisBackend'),
    ])
