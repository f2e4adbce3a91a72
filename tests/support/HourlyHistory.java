// Commits of real rows, real deletes and real compactions by the hundred, inside the driver's JVM, and what a snapshot reads.
// Compiled by Janino, so no generics and no lambdas.
package tests;

import java.util.Iterator;
import java.util.List;
import java.util.function.Function;
import java.util.zip.CRC32;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileMetadata;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.MetricsConfig;
import org.apache.iceberg.RewriteFiles;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.Transaction;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.parquet.ParquetUtil;

public final class HourlyHistory {
  private Transaction open;
  private int vectors = 0;

  /** Many snapshots and one metadata file: a commit for each would write all those before it again. */
  public void begin(Table table) {
    open = table.newTransaction();
  }

  public void commit() {
    open.commitTransaction();
    open = null;
  }

  public long append(String path, long size, String partition) {
    AppendFiles append = open.newAppend();
    append.appendFile(data(path, size, partition));
    append.commit();
    return made();
  }

  public long deletePositions(String path, long size, String partition) {
    return delete(deletes(path, size, partition, null));
  }

  public long deleteKeys(String path, long size, String partition, int column) {
    return delete(deletes(path, size, partition, new int[] {column}));
  }

  /** A deletion vector of one data file, in a Puffin file of its own. */
  public long deleteByVector(String dataPath, String partition, long position) throws Exception {
    Table table = open.table();
    OutputFileFactory files = OutputFileFactory.builderFor(table, 1, (long) vectors++).format(FileFormat.PUFFIN).build();
    BaseDVFileWriter writer = new BaseDVFileWriter(files, new Function() {
      public Object apply(Object path) {
        return null;
      }
    });
    DataFile file = data(dataPath, 1L, partition);
    writer.delete(dataPath, position, table.spec(), (StructLike) file.partition());
    writer.close();
    return delete((DeleteFile) writer.result().deleteFiles().get(0));
  }

  /** These files replaced by one. */
  public long compact(List paths, List sizes, String path, long size, String partition) {
    RewriteFiles rewrite = open.newRewrite().validateFromSnapshot(open.table().currentSnapshot().snapshotId());
    for (int i = 0; i < paths.size(); i++) {
      rewrite.deleteFile(data((String) paths.get(i), ((Number) sizes.get(i)).longValue(), partition));
    }
    rewrite.addFile(data(path, size, partition));
    rewrite.commit();
    return made();
  }

  /** How many rows a snapshot has, and a sum over all of them that tells any two sets of rows apart. */
  public String digest(Table table, long snapshotId) throws Exception {
    CloseableIterable rows = IcebergGenerics.read(table).useSnapshot(snapshotId).build();
    long count = 0L;
    long sum = 0L;
    try {
      for (Iterator each = rows.iterator(); each.hasNext(); count++) {
        Record row = (Record) each.next();
        long id = ((Long) row.getField("id")).longValue();
        CRC32 text = new CRC32();
        text.update((id + ":" + row.getField("s") + ":" + row.getField("day")).getBytes("UTF-8"));
        sum += text.getValue() * (2654435761L * id + 1L);
      }
    } finally {
      rows.close();
    }
    return count + ":" + sum;
  }

  private long delete(DeleteFile file) {
    RowDelta delta = open.newRowDelta().validateFromSnapshot(open.table().currentSnapshot().snapshotId());
    delta.addDeletes(file);
    delta.commit();
    return made();
  }

  private long made() {
    return open.table().currentSnapshot().snapshotId();
  }

  private DataFile data(String path, long size, String partition) {
    return DataFiles.builder(open.table().spec())
        .withPath(path)
        .withFileSizeInBytes(size)
        .withFormat("parquet")
        .withPartitionPath(partition)
        .withMetrics(size == 1L ? new Metrics(Long.valueOf(1L)) : metrics(path, MetricsConfig.getDefault()))
        .build();
  }

  private DeleteFile deletes(String path, long size, String partition, int[] columns) {
    FileMetadata.Builder builder = FileMetadata.deleteFileBuilder(open.table().spec());
    if (columns == null) {
      builder.ofPositionDeletes();
    } else {
      builder.ofEqualityDeletes(columns);
    }
    return builder.withPath(path)
        .withFileSizeInBytes(size)
        .withFormat("parquet")
        .withPartitionPath(partition)
        .withMetrics(metrics(path, columns == null ? MetricsConfig.forPositionDelete() : MetricsConfig.getDefault()))
        .build();
  }

  private Metrics metrics(String path, MetricsConfig config) {
    return ParquetUtil.fileMetrics(open.table().io().newInputFile(path), config);
  }
}
